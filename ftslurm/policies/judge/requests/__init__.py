"""What the owner of the job asks for while it runs: what is answered, what is broken off for it, and what is done."""
