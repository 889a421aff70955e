"""Reports: decisions and trials become DataFrames first, and text last. Knows neither a database nor an accelerator."""
