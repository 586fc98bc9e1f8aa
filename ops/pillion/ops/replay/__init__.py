"""`pillion replay`: a recording's events through the core again, plan against plan."""
