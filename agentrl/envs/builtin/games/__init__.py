"""Games of several agents with hidden information: `kuhn_poker`, `liars_dice`, `negotiation`."""
