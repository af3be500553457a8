"""How shims, agents and ftrun talk: signed links, conversations that outlive them, and the lease that their answers renew."""
