"""How shims, agents and ftrun communicate: signed connections, sessions that survive them, and the lease that answers renew."""
