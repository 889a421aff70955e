"""Reports: DataFrames of decisions and trials, and their text. No database and no accelerator is loaded here."""
