package runtime

import (
	"encoding/json"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestChartsNetworks: the pods of the suite get from ovs-cni what those get who install the chart. A setting that only the suite
// had would hide what is missing without it.
func TestChartsNetworks(t *testing.T) {
	template, err := os.ReadFile("../../deploy/chart/templates/networks.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(template), `{"type": "ovs", `)
	text, _, ended := strings.Cut(rest, "}},\n")
	if !found || !ended {
		t.Fatal("the chart's networks have no ovs-cni, or it is written otherwise")
	}
	text = `{"type": "ovs", ` + text + "}}"
	text = regexp.MustCompile(`"[a-z:]+\{\{[^}]*\}\}[^"]*"`).ReplaceAllString(text, `"templated"`)
	text = regexp.MustCompile(`\{\{[^}]*\}\}`).ReplaceAllString(text, `"templated"`)
	var charts, ours map[string]any
	if err := json.Unmarshal([]byte(text), &charts); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	mine, err := json.Marshal(ovsPlugin("br-rail0", "/run/openvswitch/db.sock", map[string]any{}))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(mine, &ours); err != nil {
		t.Fatal(err)
	}
	for _, key := range slices.Sorted(maps.Keys(charts)) {
		if charts[key] == "templated" && ours[key] != nil {
			delete(charts, key)
			delete(ours, key)
		}
	}
	if !reflect.DeepEqual(charts, ours) {
		t.Errorf("the chart has %v, the suite %v", charts, ours)
	}
}
