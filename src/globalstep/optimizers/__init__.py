"""`gs.optim`: optimizers and learning-rate schedules, as descriptions of what a PS task applies."""
