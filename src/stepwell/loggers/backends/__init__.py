"""The backends of loggers, one module or package each. They run in other processes than training."""
