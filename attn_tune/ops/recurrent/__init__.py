"""The contract that the ops of linear attention share: problems, inputs, references, and what is counted."""
