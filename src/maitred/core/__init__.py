"""What every package stands on: requests, contracts, decisions, the registry of plug-ins, units and errors."""
