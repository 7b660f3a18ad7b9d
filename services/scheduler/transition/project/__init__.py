"""PURE: changes of workspaces, projects and templates, and the project of an experiment.

Start: rule.py
"""
