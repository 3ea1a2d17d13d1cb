// Command railweave-frr is a chained CNI plugin that announces a pod's addresses to the rail's leaf.
// It only translates: the node agent does the work.
package main

import (
	"github.com/containernetworking/cni/pkg/skel"

	"github.com/railweave/railweave/cni/internal/plugin"
)

func main() {
	skel.PluginMainFuncs(plugin.FRR(), plugin.Versions(), "railweave-frr: announces a pod's addresses to the rail's leaf")
}
