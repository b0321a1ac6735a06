"""From measurements to tables, plots and the pages of docs/."""
