"""Ensembles: the predictions of a run's models, averaged."""
