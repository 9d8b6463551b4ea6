"""One module a group of figures: `async measure(quick) -> (runs by figure, conditions)`."""
