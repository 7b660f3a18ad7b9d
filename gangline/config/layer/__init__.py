"""Settings that an experiment inherits from its workspace, its project and its template: names, merging and checks."""
