"""The MLflow backend."""
