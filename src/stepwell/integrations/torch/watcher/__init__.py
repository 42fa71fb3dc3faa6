"""``watch``: record a plain PyTorch training loop without changing it.

``watch.py`` has the public function, ``training.py`` the observer that turns the calls of hooks into
iterations. One module each covers the training loop, loss, epochs, validation, operations and checkpoints.
Imports the hooks of ``integrations.torch``, training and diagnostics.
"""
