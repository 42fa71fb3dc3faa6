"""Whole trainings with known ground truth, and the findings that stepwell must report for each."""
