"""Small models of public libraries with random weights, for `benchmarks/architectures.py`.

catalogue.py lists the models, trial.py trains one in a rank and alone, and table.py has the results as records, as JSON
and as a part of docs/architectures.md.
"""
