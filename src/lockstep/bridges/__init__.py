"""Our worlds as other people's environments: one lane as a Gymnasium or a PettingZoo env."""
