"""PURE: changes of workspaces, projects, templates and models, and the project of an experiment.

Start: rule.py
"""
