"""Commands about workspaces, projects, templates and models.

Start: project.py
"""
