"""What is measured on a network: the diagnostics, their rules, the identity check, the audit of anybody's model."""
