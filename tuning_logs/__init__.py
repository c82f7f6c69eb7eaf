"""Shipped tuning logs, one folder a device; see README.md beside this file."""
