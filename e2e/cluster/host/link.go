package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Bridge connects the host and the machines; there is one, so there is one cluster. Its alias is the cluster's folder.
const Bridge = "tangram0"

// vethPrefix starts the names of the host's ends of the machines' links.
const vethPrefix = "tgc-"

// Veth is the name of the host's end of a machine's link.
func Veth(machine string) string { return vethPrefix + machine }

// BridgeOwner returns the folder of the cluster that owns the bridge; !found: there is no bridge. An empty owner: an
// `up` was killed before it set the alias.
func BridgeOwner() (owner string, found bool, err error) {
	link, err := netlink.LinkByName(Bridge)
	if isNoLink(err) {
		return "", false, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("bridge %s: %w", Bridge, err)
	}
	return link.Attrs().Alias, true, nil
}

func isNoLink(err error) bool {
	var none netlink.LinkNotFoundError
	return errors.As(err, &none)
}

// hardwareAddress returns a fixed address for an IPv4 address, as real machines have. By default a bridge takes the
// lowest address of its links. Then it would change as machines come and go, and machines would use outdated addresses
// for seconds.
func hardwareAddress(ip net.IP) net.HardwareAddr {
	v4 := ip.To4()
	return net.HardwareAddr{0x02, 0x54, v4[0], v4[1], v4[2], v4[3]} // locally administered
}

// AddBridge makes the bridge with the host's address and records its owner.
func AddBridge(owner string, address *net.IPNet) error {
	fail := func(err error) error { return fmt.Errorf("bridge %s: %w", Bridge, err) }
	attrs := netlink.NewLinkAttrs()
	attrs.Name = Bridge
	attrs.HardwareAddr = hardwareAddress(address.IP)
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
		return fail(err)
	}
	link, err := netlink.LinkByName(Bridge)
	if err != nil {
		return fail(err)
	}
	if err := netlink.LinkSetAlias(link, owner); err != nil {
		return fail(fmt.Errorf("alias: %w", err))
	}
	if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: address}); err != nil {
		return fail(fmt.Errorf("address %s: %w", address, err))
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fail(err)
	}
	return nil
}

// AddRoute adds the host's route to a node's pods; it is removed with the bridge.
func AddRoute(to *net.IPNet, gateway net.IP) error {
	link, err := netlink.LinkByName(Bridge)
	if err != nil {
		return fmt.Errorf("bridge %s: %w", Bridge, err)
	}
	if err := netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: to, Gw: gateway}); err != nil {
		return fmt.Errorf("route to %s via %s: %w", to, gateway, err)
	}
	return nil
}

// Plug connects a machine, given its supervisor's PID, to the bridge. The machine's end is eth0, whose address the
// machine sets itself.
func Plug(ctx context.Context, machine string, pid int, address net.IP) error {
	fail := func(err error) error { return fmt.Errorf("link %s of machine %s: %w", Veth(machine), machine, err) }
	bridge, err := netlink.LinkByName(Bridge)
	if err != nil {
		return fail(err)
	}
	// The namespace of a machine that ended releases its link with a delay.
	if err := removeLink(ctx, Veth(machine)); err != nil {
		return fail(err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = Veth(machine)
	attrs.MasterIndex = bridge.Attrs().Index
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsPid(pid), PeerHardwareAddr: hardwareAddress(address)}
	if err := netlink.LinkAdd(veth); err != nil {
		return fail(err)
	}
	return SetLink(machine, true)
}

// SetLink sets a machine's link up or down at the host's end, like plugging a cable in or out.
func SetLink(machine string, up bool) error {
	link, err := netlink.LinkByName(Veth(machine))
	if err != nil {
		return fmt.Errorf("link %s of machine %s: %w", Veth(machine), machine, err)
	}
	if up {
		err = netlink.LinkSetUp(link)
	} else {
		err = netlink.LinkSetDown(link)
	}
	if err != nil {
		return fmt.Errorf("link %s of machine %s: %w", Veth(machine), machine, err)
	}
	return nil
}

// LinkUp reports whether a machine's link is up at the host's end.
func LinkUp(machine string) bool {
	link, err := netlink.LinkByName(Veth(machine))
	return err == nil && link.Attrs().Flags&net.FlagUp != 0
}

// Links lists the host's links.
func Links() ([]netlink.Link, error) { return whole("links", netlink.LinkList) }

// Routes lists the host's routes, of one address family or of all.
func Routes(family int) ([]netlink.Route, error) {
	return whole("routes", func() ([]netlink.Route, error) { return netlink.RouteList(nil, family) })
}

// whole reads a list from the kernel again until it did not change meanwhile. Links disappear a little after their
// machines, so changes are common when a cluster ends.
func whole[T any](what string, list func() (T, error)) (T, error) {
	const tries = 100 // far more than the number of a cluster's links
	for try := 1; ; try++ {
		all, err := list()
		if err == nil || try == tries || !errors.Is(err, netlink.ErrDumpInterrupted) {
			if err != nil {
				err = fmt.Errorf("%s: %w", what, err)
			}
			return all, err
		}
	}
}

// RemoveLinks removes the machines' links and then the bridge with its routes.
func RemoveLinks(ctx context.Context) error {
	links, err := Links()
	if err != nil {
		return err
	}
	for _, link := range links {
		if name := link.Attrs().Name; link.Type() == "veth" && strings.HasPrefix(name, vethPrefix) {
			err = errors.Join(err, removeLink(ctx, name))
		}
	}
	return errors.Join(err, removeLink(ctx, Bridge))
}

// removeLink waits until the link is gone; no error if it does not exist.
func removeLink(ctx context.Context, name string) error {
	return Poll(ctx, 20*time.Millisecond, 10*time.Second, func() error {
		link, err := netlink.LinkByName(name)
		if isNoLink(err) {
			return nil
		}
		if err == nil {
			err = netlink.LinkDel(link)
		}
		// The link was removed from its other end, or is being removed.
		if err == nil || errors.Is(err, syscall.ENODEV) || errors.Is(err, unix.ENXIO) {
			return fmt.Errorf("link %s: %w", name, errAlive)
		}
		return fmt.Errorf("link %s: %w", name, err)
	})
}

// Overlaps lists the host's routes into networks that a cluster needs.
func Overlaps(wanted ...*net.IPNet) ([]string, error) {
	routes, err := Routes(netlink.FAMILY_V4)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, route := range routes {
		if route.Dst == nil || route.Dst.IP.IsUnspecified() { // the default route
			continue
		}
		for _, want := range wanted {
			if want.Contains(route.Dst.IP) || route.Dst.Contains(want.IP) {
				found = append(found, fmt.Sprintf("the host has a route to %s, within the cluster's %s", route.Dst, want))
			}
		}
	}
	return found, nil
}
