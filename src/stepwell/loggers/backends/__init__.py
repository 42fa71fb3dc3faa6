"""Where logged records arrive: one folder or file for each backend. They run in processes of their own."""
