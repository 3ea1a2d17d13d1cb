# The Kubernetes side: Go module cni/.

CNI_FUZZ_INPUTS ?= 1000000
# Built from source by Go, for some minutes the first time.
GOLANGCI_LINT ?= go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.5.0

# What is fuzzed, as package:function.
CNI_FUZZ := \
	./internal/nodeconfig:FuzzParse \
	./internal/plugin:FuzzConfig \
	./internal/plugin:FuzzArgs \
	./internal/store:FuzzDecode \
	./internal/store:FuzzDecodeTombstone

.PHONY: test-cni test-cni-unit test-cni-e2e test-cni-full test-cni-kubernetes soak-cni bench-cni fuzz-cni fuzz-cni-short lint-cni build-cni generate-cni

build-cni: ## plugins, node agent and commands of the Kubernetes side, in build/cni
	cd cni && CGO_ENABLED=0 go build -trimpath -o ../build/cni/ ./cmd/...

# What every change must pass: logic with the race detector, some thousand fuzzed inputs, then the end-to-end suite, which needs
# root. test-cni-full has its scenarios in full size, test-cni-kubernetes those that need an API server.
test-cni: test-cni-unit test-cni-e2e fuzz-cni-short ## tests of the Kubernetes side; end to end as root

# `go test` compiles once for tests and vet; a `go vet` beside it compiles all that is below once more (4 minutes, cold).
test-cni-unit: ## its logic, with the race detector
	@cd cni && unformatted=$$(gofmt -l .); if [ -n "$$unformatted" ]; then echo "gofmt: $$unformatted"; exit 1; fi
	cd cni && go test -race -vet=all -short -timeout 20m ./...

# Where CI is set, what cannot run is a failure: skipped tests look like passed ones.
test-cni-e2e: ## its end-to-end suite in network namespaces, as root
	@if [ "$$(id -u)" != 0 ]; then \
		echo "cni end-to-end suite: NOT RUN, it needs root (network namespaces, Open vSwitch, FRR)"; \
		test -z "$${CI:-}"; \
	else \
		cd cni && RAILWEAVE_E2E_REQUIRED=$${CI:-} go test -count=1 -timeout 30m -p 1 -parallel 3 ./e2e/...; \
	fi

test-cni-full: export RAILWEAVE_E2E_FULL := 1
test-cni-full: test-cni ## the same with the scenarios in full size

fuzz-cni-short:
	@$(MAKE) -s fuzz-cni CNI_FUZZ_INPUTS=5000

# The agents on a real API server with the chart's roles and policies. Builds kube-apiserver and Helm from source: some
# minutes and 7 GB of Go caches the first time.
test-cni-kubernetes: ## its agents on a real API server, which is built from source (minutes, 7 GB)
	cd cni && RAILWEAVE_E2E_REQUIRED=1 go test -count=1 -timeout 30m -tags kubernetes -run Kubernetes -v ./e2e

soak-cni: ## ten thousand ADDs and DELs under random kills (an hour, as root)
	cd cni && go run ./e2e/cmd/soak -operations 10000

# The numbers mean something on an idle machine only.
bench-cni: ## how long ADD and DEL take
	cd cni && go run ./e2e/cmd/addlatency

# At least CNI_FUZZ_INPUTS inputs each. The seeds run in every `go test`.
fuzz-cni: ## a million inputs for each parser of the Kubernetes side
	@cd cni && for pair in $(CNI_FUZZ); do \
		echo "fuzz $$pair"; \
		go test -run '^$$' -fuzz "^$${pair#*:}$$" -fuzztime $(CNI_FUZZ_INPUTS)x -fuzzminimizetime 10x "$${pair%%:*}" || exit 1; \
	done

lint-cni: ## go vet and golangci-lint
	cd cni && go vet -tags kubernetes ./... && $(GOLANGCI_LINT) run ./... && $(GOLANGCI_LINT) run --build-tags kubernetes ./e2e

# The Go code of the contract; needs protoc, protoc-gen-go 1.36.10 and protoc-gen-go-grpc 1.5.1.
generate-cni: ## the Go code of the agent's interface, from its .proto
	cd cni && protoc -I . --go_out=. --go_opt=module=github.com/railweave/railweave/cni \
		--go-grpc_out=. --go-grpc_opt=module=github.com/railweave/railweave/cni api/v1/railweave.proto
