.PHONY: protocol protocol-full
protocol: ## model-check the engine's protocol (docs/protocol-model.md)
	@protocol/check --jobs $(JOBS)

protocol-full: ## the same with the large configurations (minutes, up to 8 GiB)
	@protocol/check --full --jobs 1
