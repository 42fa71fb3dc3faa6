"""Whole trainings whose truth is known, and what stepwell must say about each of them."""
