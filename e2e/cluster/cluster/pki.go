package cluster

import (
	"net"
	"os"
	"path/filepath"

	"tangram.dev/e2e/cluster/machine"
	"tangram.dev/e2e/cluster/pki"
)

// writePKI writes keys, certificates and kubeconfigs of all components.
func writePKI(o *Options) error {
	dir := filepath.Join(o.Dir, "pki")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	authority, err := pki.NewAuthority("kubernetes-ca")
	if err != nil {
		return err
	}
	front, err := pki.NewAuthority("front-proxy-ca")
	if err != nil {
		return err
	}
	tokens, err := pki.SigningKey()
	if err != nil {
		return err
	}
	pairs := map[string]pki.Pair{"ca": authority.Pair, "front-proxy-ca": front.Pair, "sa": tokens}
	server := func(file, name string, names []string, addresses ...string) (err error) {
		var ips []net.IP
		for _, address := range addresses {
			ips = append(ips, net.ParseIP(address))
		}
		pairs[file], err = authority.Server(name, names, ips)
		return err
	}
	user := func(name, group, kubeconfig string) error {
		pair, err := authority.Client(name, group)
		if err != nil {
			return err
		}
		return authority.WriteKubeconfig(kubeconfig, machine.Server(), name, pair)
	}

	if err := server("apiserver", "kube-apiserver",
		[]string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
		"127.0.0.1", machine.FirstService, machine.ControlAddress); err != nil {
		return err
	}
	if pairs["apiserver-kubelet-client"], err = authority.Client("kube-apiserver-kubelet-client", "system:masters"); err != nil {
		return err
	}
	if pairs["front-proxy-client"], err = front.Client("front-proxy-client", ""); err != nil {
		return err
	}
	for _, name := range []string{"kube-controller-manager", "kube-scheduler", "kube-proxy"} {
		if err := user("system:"+name, "", filepath.Join(dir, name+".kubeconfig")); err != nil {
			return err
		}
	}
	for i := 1; i <= o.Nodes; i++ {
		node := machine.NodeName(i)
		if err := user("system:node:"+node, "system:nodes", filepath.Join(dir, node+".kubeconfig")); err != nil {
			return err
		}
		if err := server(node+"-serving", "system:node:"+node, []string{node}, machine.NodeAddress(i)); err != nil {
			return err
		}
	}
	for name, pair := range pairs {
		if err := pair.Write(dir, name); err != nil {
			return err
		}
	}
	return user("admin", "system:masters", Kubeconfig(o.Dir))
}
