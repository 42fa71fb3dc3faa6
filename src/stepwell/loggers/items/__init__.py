"""What is logged and is no number: live objects become values and files."""
