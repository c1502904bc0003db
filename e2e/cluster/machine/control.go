package machine

import (
	"path/filepath"
	"strconv"
)

const etcdURL = "http://127.0.0.1:2379"

// controlPlane returns the components, which start concurrently: each waits for its dependencies.
func (s *Spec) controlPlane() []component {
	p := func(name string) string { return filepath.Join(s.PKI(), name) }
	kube := func(name string, args ...string) component { return component{name: name, path: s.Kube, args: args} }
	// A client of the apiserver. With its default limits (20 and 50 requests/s) 1000 pods take a minute.
	client := func(name string, args ...string) component {
		config := p(name + ".kubeconfig")
		return kube(name, append([]string{
			"--kubeconfig=" + config, "--authentication-kubeconfig=" + config, "--authorization-kubeconfig=" + config,
			"--bind-address=127.0.0.1", "--leader-elect=false", "--kube-api-qps=500", "--kube-api-burst=1000",
		}, args...)...)
	}
	return []component{
		kube("etcd", "--data-dir="+filepath.Join(s.Home(), "etcd"), "--unsafe-no-fsync", // right for tests only
			"--listen-client-urls="+etcdURL, "--advertise-client-urls="+etcdURL,
			"--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380",
			"--initial-cluster=default=http://127.0.0.1:2380", "--log-level=warn"),
		kube("kube-apiserver", "--bind-address="+ControlAddress, "--advertise-address="+ControlAddress,
			"--secure-port="+strconv.Itoa(apiserverPort), "--etcd-servers="+etcdURL, "--cert-dir="+filepath.Join(s.Home(), "apiserver"),
			"--service-cluster-ip-range="+ServiceNetwork, "--allow-privileged", "--authorization-mode=Node,RBAC",
			"--enable-admission-plugins=NodeRestriction",
			"--client-ca-file="+p("ca.crt"), "--tls-cert-file="+p("apiserver.crt"), "--tls-private-key-file="+p("apiserver.key"),
			"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
			"--service-account-signing-key-file="+p("sa.key"), "--service-account-key-file="+p("sa.crt"),
			"--kubelet-client-certificate="+p("apiserver-kubelet-client.crt"), "--kubelet-client-key="+p("apiserver-kubelet-client.key"),
			"--kubelet-certificate-authority="+p("ca.crt"), "--kubelet-preferred-address-types=InternalIP",
			"--requestheader-client-ca-file="+p("front-proxy-ca.crt"), "--requestheader-allowed-names=front-proxy-client",
			"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
			"--requestheader-extra-headers-prefix=X-Remote-Extra-",
			"--proxy-client-cert-file="+p("front-proxy-client.crt"), "--proxy-client-key-file="+p("front-proxy-client.key"),
			// There is no kube-proxy here: webhooks and aggregated APIs are called at their pods' addresses.
			"--enable-aggregator-routing=true"),
		client("kube-controller-manager", "--use-service-account-credentials", "--service-account-private-key-file="+p("sa.key"),
			"--root-ca-file="+p("ca.crt"), "--cluster-signing-cert-file="+p("ca.crt"), "--cluster-signing-key-file="+p("ca.key"),
			"--requestheader-client-ca-file="+p("front-proxy-ca.crt"), "--flex-volume-plugin-dir="+filepath.Join(s.Home(), "volume-plugins"),
			"--allocate-node-cidrs=false"), // the nodes' subnets are fixed; the controller would assign others
		client("kube-scheduler"),
	}
}
