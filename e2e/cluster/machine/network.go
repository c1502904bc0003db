package machine

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/vishvananda/netlink"

	"tangram.dev/e2e/cluster/host"
)

// connect waits for the machine's link from the host, and sets its address and routes.
func (s *Spec) connect(ctx context.Context) error {
	var link netlink.Link
	if err := host.Poll(ctx, 10*time.Millisecond, 20*time.Second, func() (err error) {
		link, err = netlink.LinkByName("eth0")
		return err
	}); err != nil {
		return fmt.Errorf("no link from the host: %w", err)
	}
	local, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("lo: %w", err)
	}
	if err := netlink.LinkSetUp(local); err != nil {
		return fmt.Errorf("lo: %w", err)
	}
	address := &net.IPNet{IP: net.ParseIP(s.Address()), Mask: Network(MachineNetwork).Mask}
	if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: address}); err != nil {
		return fmt.Errorf("address %s: %w", address, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("eth0: %w", err)
	}
	routes := map[string]string{"0.0.0.0/0": HostAddress}
	for i := 1; i <= s.Nodes; i++ {
		if i != s.Index {
			routes[PodSubnet(i)] = NodeAddress(i)
		}
	}
	for to, via := range routes {
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: Network(to), Gw: net.ParseIP(via)}); err != nil {
			return fmt.Errorf("route to %s via %s: %w", to, via, err)
		}
	}
	if s.Control() {
		return nil
	}
	// Affects this network namespace, not the host.
	return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1\n"), 0)
}
