package kernel

import (
	"net"
	"net/netip"
	"testing"
)

// TestLinkLocal is the example of RFC 4291, appendix A, and the address FRR's leaf computes the MAC from.
func TestLinkLocal(t *testing.T) {
	mac, err := net.ParseMAC("34:56:78:9a:bc:de")
	if err != nil {
		t.Fatal(err)
	}
	if got := linkLocal(mac); got != netip.MustParsePrefix("fe80::3656:78ff:fe9a:bcde/64") {
		t.Error(got)
	}
}

func TestPrefixesThereAndBack(t *testing.T) {
	for _, text := range []string{"10.64.0.5/32", "10.64.0.0/16", "fd64::5/128", "fd64::/64", "0.0.0.0/0"} {
		want := netip.MustParsePrefix(text)
		if got, ok := FromIPNet(ToIPNet(want)); !ok || got != want {
			t.Errorf("%s: %v, %t", text, got, ok)
		}
	}
	if _, ok := FromIPNet(nil); ok {
		t.Error("nil has a prefix")
	}
}
