"""Drop-in names of other libraries: itwinai, dftracer, nv-one-logger and sim_bench.

Each module maps another library's names to stepwell's own functions and classes. It may import every
recording package and the integrations.
"""
