"""The checks by what they look at; `railweave.doctor.catalogue` lists them all."""
