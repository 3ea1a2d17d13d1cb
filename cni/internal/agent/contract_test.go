package agent

import (
	"bufio"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	nodev1 "github.com/railweave/railweave/cni/api/v1"
	"github.com/railweave/railweave/cni/internal/failure"
)

// TestContractNamesEveryReason: what the .proto lists for each RPC is what the code can answer, with the code it is sent with.
func TestContractNamesEveryReason(t *testing.T) {
	documented := documentedReasons(t, "../../api/v1/railweave.proto")
	graph := readGraph(t)
	for _, method := range nodev1.Node_ServiceDesc.Methods {
		name := method.MethodName
		answers := graph.reasons("server."+name, "Agent.intercept")
		for reason := range answers {
			number, known := nodev1.Reason_value[reason]
			if !known {
				t.Fatalf("%s: no reason %q", name, reason)
			}
			want := failure.Codes(nodev1.Reason(number)).GRPC
			switch listed, there := documented[name][reason]; {
			case !there:
				t.Errorf("%s can answer %s, which the .proto does not list for it (with %s)", name, reason, want)
			case listed != want:
				t.Errorf("%s: the .proto lists %s with %s, it is sent with %s", name, reason, listed, want)
			}
		}
		for reason := range documented[name] {
			if !answers[reason] {
				t.Errorf("%s: the .proto lists %s, which no code answers it with", name, reason)
			}
		}
	}
}

// TestEveryReasonHasCodes of both protocols, and is used by some RPC.
func TestEveryReasonHasCodes(t *testing.T) {
	used := map[string]bool{}
	for _, reasons := range documentedReasons(t, "../../api/v1/railweave.proto") {
		for reason := range reasons {
			used[reason] = true
		}
	}
	for number, name := range nodev1.Reason_name {
		if number == 0 {
			continue
		}
		if pair := failure.Codes(nodev1.Reason(number)); pair.CNI == failure.CNIInternal {
			t.Errorf("%s has no CNI code", name)
		}
		if !used[name] {
			t.Errorf("%s is listed for no RPC", name)
		}
	}
}

var (
	rpcLine  = regexp.MustCompile(`^  rpc (\w+)\(`)
	codeLine = regexp.MustCompile(`^  //   +([A-Z_]+) +([A-Z_, ]+)`)
	moreLine = regexp.MustCompile(`^  //     +([A-Z_]+(?:, [A-Z_]+)*)`)
)

// documentedReasons reads the comments above each RPC: a gRPC code, then its reasons, by RPC and reason.
func documentedReasons(t *testing.T, path string) map[string]map[string]codes.Code {
	t.Helper()
	byName := map[string]codes.Code{"INVALID_ARGUMENT": codes.InvalidArgument, "NOT_FOUND": codes.NotFound, "ALREADY_EXISTS": codes.AlreadyExists,
		"FAILED_PRECONDITION": codes.FailedPrecondition, "UNAVAILABLE": codes.Unavailable, "INTERNAL": codes.Internal}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }() // only read
	all, above, code := map[string]map[string]codes.Code{}, map[string]codes.Code{}, codes.Unknown
	list := func(reasons string) {
		for _, reason := range strings.Split(reasons, ",") {
			if reason = strings.TrimSpace(reason); reason != "" {
				above[reason] = code
			}
		}
	}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		text := lines.Text()
		if found := rpcLine.FindStringSubmatch(text); found != nil {
			all[found[1]], above = above, map[string]codes.Code{}
		} else if found := codeLine.FindStringSubmatch(text); found != nil && byName[found[1]] != codes.OK {
			code = byName[found[1]]
			list(found[2])
		} else if found := moreLine.FindStringSubmatch(text); found != nil {
			list(found[1])
		}
	}
	if len(all) != len(nodev1.Node_ServiceDesc.Methods) {
		t.Fatalf("%s: RPCs %v", path, slices.Sorted(maps.Keys(all)))
	}
	return all
}

// callGraph is this package's functions: the reasons that each names, and the functions that each calls. Methods are named
// with their type.
type callGraph struct {
	names map[string]map[string]bool
	calls map[string]map[string]bool
}

// hidden is what a call does not show: the work of a batch, and a rail's problem, which ensureBridge leaves there.
var hidden = map[string]string{"applying": "rail.apply", "saving": "Agent.save", "revalidating": "Agent.revalidate", "problem": "rail.ensureBridge"}

// types of what methods are called on, by the names that this package always gives it, and those of other packages.
var (
	ownTypes = map[string]string{"a": "Agent", "agent": "Agent", "r": "rail", "rails": "rail", "s": "server"}
	foreign  = []string{"Kernel", "Pods", "Database", "Switch", "Routing", "Source", "Recorder", "kernel", "podnet", "store", "slices", "applying", "saving", "revalidating", "last"}
)

func readGraph(t *testing.T) callGraph {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	graph := callGraph{map[string]map[string]bool{}, map[string]map[string]bool{}}
	var functions []*ast.FuncDecl
	methods := map[string]bool{}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, declared := range file.Decls {
			if function, ok := declared.(*ast.FuncDecl); ok {
				functions = append(functions, function)
				if of, name, ok := strings.Cut(qualified(function), "."); ok && slices.Contains([]string{"Agent", "rail"}, of) {
					methods[name] = true
				}
			}
		}
	}
	for _, function := range functions {
		graph.add(t, function, methods)
	}
	return graph
}

func qualified(function *ast.FuncDecl) string {
	if function.Recv == nil {
		return function.Name.Name
	}
	of := function.Recv.List[0].Type
	if pointer, ok := of.(*ast.StarExpr); ok {
		of = pointer.X
	}
	return lastName(of) + "." + function.Name.Name
}

func (g callGraph) add(t *testing.T, function *ast.FuncDecl, methods map[string]bool) {
	t.Helper()
	name := qualified(function)
	g.names[name], g.calls[name] = map[string]bool{}, map[string]bool{}
	ast.Inspect(function, func(node ast.Node) bool {
		if call, ok := node.(*ast.CallExpr); ok {
			switch called := call.Fun.(type) {
			case *ast.Ident:
				g.calls[name][called.Name] = true
			case *ast.SelectorExpr:
				of := lastName(called.X)
				if _, own := ownTypes[of]; !own && methods[called.Sel.Name] && !slices.Contains(foreign, of) {
					t.Errorf("%s calls %s.%s: the test cannot tell whose method that is", name, of, called.Sel.Name)
				}
			}
		}
		selector, ok := node.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		of := lastName(selector.X)
		if reason, ok := strings.CutPrefix(selector.Sel.Name, "Reason_"); ok {
			g.names[name][reason] = true
		} else if work, ok := hidden[selector.Sel.Name]; ok {
			g.calls[name][work] = true
		} else if known, ok := ownTypes[of]; ok {
			g.calls[name][known+"."+selector.Sel.Name] = true
		}
		return true
	})
}

// lastName of a.b, a.b[c] and the like is b.
func lastName(expression ast.Expr) string {
	switch found := expression.(type) {
	case *ast.Ident:
		return found.Name
	case *ast.SelectorExpr:
		return found.Sel.Name
	case *ast.IndexExpr:
		return lastName(found.X)
	default:
		return ""
	}
}

// reasons that the functions, and all they call, name.
func (g callGraph) reasons(roots ...string) map[string]bool {
	all, seen := map[string]bool{}, map[string]bool{}
	for len(roots) > 0 {
		name := roots[0]
		roots = roots[1:]
		if seen[name] {
			continue
		}
		seen[name] = true
		maps.Copy(all, g.names[name])
		roots = slices.AppendSeq(roots, maps.Keys(g.calls[name]))
	}
	return all
}
