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

.PHONY: test-cni test-cni-unit test-cni-e2e test-cni-full test-cni-kubernetes soak-cni bench-cni fuzz-cni vet-cni lint-cni build-cni generate-cni

build-cni:
	cd cni && CGO_ENABLED=0 go build -trimpath -o ../build/cni/ ./cmd/...

# What every change must pass: logic with the race detector, then the end-to-end suite, which needs root and says so when it
# cannot run. test-cni-full has the long scenarios too.
test-cni: test-cni-unit test-cni-e2e

# Formatting and go vet in seconds; what every change must pass. lint-cni has all linters.
vet-cni:
	@cd cni && unformatted=$$(gofmt -l .); if [ -n "$$unformatted" ]; then echo "gofmt: $$unformatted"; exit 1; fi
	cd cni && go vet ./... && go vet -tags kubernetes ./e2e

test-cni-unit: vet-cni
	cd cni && go test -race -short -timeout 20m ./...

test-cni-e2e:
	@if [ "$$(id -u)" != 0 ]; then \
		echo "cni end-to-end suite: NOT RUN, it needs root (network namespaces, Open vSwitch, FRR)"; \
	else \
		cd cni && RAILWEAVE_E2E_REQUIRED=$${CI:-} go test -count=1 -timeout 30m -p 1 -parallel 3 ./e2e/...; \
	fi

# With the scenarios that take minutes each: all variants, isolation through every fault, 200 pods at once.
test-cni-full: export RAILWEAVE_E2E_FULL := 1
test-cni-full: test-cni

# The agents on a real API server with the chart's roles and policies. Builds kube-apiserver and Helm from source: some
# minutes and 7 GB of Go caches the first time.
test-cni-kubernetes:
	cd cni && RAILWEAVE_E2E_REQUIRED=1 go test -count=1 -timeout 30m -tags kubernetes -run Kubernetes -v ./e2e

# Ten thousand ADDs and DELs under random kills; an hour or so.
soak-cni:
	cd cni && go run ./e2e/cmd/soak -operations 10000

# How long ADD and DEL take. The numbers mean something on an idle machine only.
bench-cni:
	cd cni && go run ./e2e/cmd/addlatency

# At least CNI_FUZZ_INPUTS inputs each. The seeds run in every `go test`.
fuzz-cni:
	@cd cni && for pair in $(CNI_FUZZ); do \
		echo "fuzz $$pair"; \
		go test -run '^$$' -fuzz "^$${pair#*:}$$" -fuzztime $(CNI_FUZZ_INPUTS)x -fuzzminimizetime 10x "$${pair%%:*}" || exit 1; \
	done

lint-cni: vet-cni
	cd cni && $(GOLANGCI_LINT) run ./...

# The Go code of the contract; needs protoc, protoc-gen-go 1.36.10 and protoc-gen-go-grpc 1.5.1.
generate-cni:
	cd cni && protoc -I . --go_out=. --go_opt=module=github.com/railweave/railweave/cni \
		--go-grpc_out=. --go-grpc_opt=module=github.com/railweave/railweave/cni api/v1/railweave.proto
