package agent

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/railweave/railweave/cni/internal/frr"
)

// Metrics are the agent's, all named railweave_.
type Metrics struct {
	Attachments   prometheus.Gauge
	Latency       *prometheus.HistogramVec
	Repairs       *prometheus.CounterVec
	ApplyErrors   *prometheus.CounterVec
	Flows         *prometheus.GaugeVec
	Announced     *prometheus.GaugeVec
	SessionUp     *prometheus.GaugeVec
	BFDDown       *prometheus.GaugeVec
	Received      *prometheus.GaugeVec
	OverLimit     *prometheus.GaugeVec
	Megaflows     *prometheus.GaugeVec
	TenantChanges *prometheus.CounterVec
	Members       prometheus.Gauge
	Disputed      prometheus.Gauge
	TenancyStale  prometheus.Gauge
	Preflight     prometheus.Gauge
}

// NewMetrics registers them.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "railweave_" + name, Help: help})
	}
	gauges := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "railweave_" + name, Help: help}, labels)
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "railweave_" + name, Help: help}, labels)
	}
	m := &Metrics{
		Attachments: gauge("attachments", "Attachments this node serves."),
		Latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "railweave_request_seconds", Help: "Time of requests, by method and result.",
			// Around the goal of 50 ms at the median and 150 ms at the 99th percentile for both plugins.
			Buckets: []float64{.005, .01, .02, .035, .05, .075, .1, .15, .25, .5, 1, 5}}, []string{"method", "code"}),
		Repairs:       counters("repairs_total", "What was not as it should be and was put right, by kind.", "kind"),
		ApplyErrors:   counters("apply_errors_total", "Attempts to bring a rail into its desired state that failed.", "rail"),
		Flows:         gauges("flows", "OpenFlow flows installed.", "rail"),
		Announced:     gauges("announced", "Addresses announced.", "rail"),
		SessionUp:     gauges("bgp_session_up", "1 if the rail's BGP session is established.", "rail"),
		BFDDown:       gauges("bfd_down", "1 if BFD is used and not up.", "rail"),
		Received:      gauges("bgp_prefixes_received", "Prefixes received from the leaf.", "rail"),
		OverLimit:     gauges("bgp_prefixes_over_limit", "1 if the leaf sends more prefixes of a family than frr.maximumPrefixes.", "rail"),
		Megaflows:     gauges("megaflows", "Cached flows that carry traffic, by where they are handled.", "rail", "layer"),
		TenantChanges: counters("tenant_changes_total", "Addresses whose tenant was revoked or granted.", "step"),
		Members:       gauge("published_addresses", "Addresses heard of, of all nodes."),
		Disputed:      gauge("disputed_addresses", "Addresses that several nodes publish."),
		Preflight:     gauge("preflight_failures", "Checks of the node that fail, so that nothing new is served."),
		TenancyStale:  gauge("tenancy_stale_seconds", "For how long nothing could be heard of other nodes; 0 if all is well."),
	}
	registry.MustRegister(m.Attachments, m.Latency, m.Repairs, m.ApplyErrors, m.Flows, m.Announced, m.SessionUp, m.BFDDown, m.Received, m.OverLimit,
		m.Megaflows, m.TenantChanges, m.Members, m.Disputed, m.TenancyStale, m.Preflight)
	return m
}

func (m *Metrics) observeSession(rail string, session frr.Session) {
	number := func(is bool) float64 {
		if is {
			return 1
		}
		return 0
	}
	m.SessionUp.WithLabelValues(rail).Set(number(session.Established))
	m.BFDDown.WithLabelValues(rail).Set(number(session.BFDDown))
	m.Received.WithLabelValues(rail).Set(float64(session.Prefixes))
	m.OverLimit.WithLabelValues(rail).Set(number(session.OverLimit))
}
