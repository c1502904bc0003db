// tangram-operator runs MoEDeployments: see internal/controller.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"tangram.dev/operator/internal/controller"
	"tangram.dev/operator/internal/custommetrics"
	"tangram.dev/operator/internal/world"
)

type flags struct {
	images                                  controller.Images
	metrics, health, logLevel, ownNamespace string
	nodeFolder                              string
	namespaces                              []string
	elect                                   bool
	certificates                            controller.Certificates
	custom                                  customMetrics
}

// customMetrics that this operator serves.
type customMetrics struct{ address, service, secret string }

// closeWithin is what running flips get at the end of the process.
const closeWithin = 20 * time.Second

// ownMetrics are registered once in a process, where controller-runtime's are.
var ownMetrics = sync.OnceValue(func() *controller.Metrics { return controller.NewMetrics(metrics.Registry) })

func main() { os.Exit(run()) }

// run gives the exit code.
func run() int {
	var f flags
	root := &cobra.Command{Use: "tangram-operator", Short: "runs MoEDeployments", Args: cobra.NoArgs, SilenceErrors: true, SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := newLog(f.logLevel)
			if err != nil {
				return err
			}
			ctrl.SetLogger(logr.FromSlogHandler(log.Handler()))
			klog.SetSlogLogger(log) // leader election speaks by it
			return serve(cmd.Context(), f, log)
		}}
	p := root.Flags()
	p.StringVar(&f.images.Agent, "agent-image", "", "image of the agents")
	p.StringVar(&f.images.AgentGPU, "agent-gpu-image", "", "image of the agents of worlds on GPUs, which also has NCCL; empty: that of the agents")
	p.StringVar(&f.images.Engine, "engine-image", "", "image of the engine reference")
	p.StringVar(&f.images.VLLM, "vllm-image", "", "image of the engine vllm and of text servers")
	p.StringVar(&f.images.Gateway, "gateway-image", "", "image of the gateways")
	p.StringVar(&f.images.Operator, "operator-image", "", "image of the operator, for pods that read checkpoints")
	p.StringSliceVar(&f.namespaces, "namespaces", nil, "the namespaces to look at; none: all")
	p.StringVar(&f.metrics, "metrics-bind-address", ":8080", "host:port of /metrics, by HTTPS, for whom the cluster lets get /metrics; 0: none")
	p.StringVar(&f.health, "health-probe-bind-address", ":8081", "host:port of /healthz and /readyz")
	p.BoolVar(&f.elect, "leader-elect", false, "act only as the holder of a lease")
	p.StringVar(&f.ownNamespace, "own-namespace", "", "where the operator runs: of its lease, and the only one from which its worlds' agents are driven; empty: any")
	p.StringVar(&f.nodeFolder, "node-folder", controller.DefaultNodeFolder, "absolute path on nodes, below which worlds with spec.network.nodeMemorySharing get a folder each; only root may write there")
	p.DurationVar(&f.certificates.Authority, "authority-validity", 365*24*time.Hour, "of the authority of a world; it is replaced when two thirds are over")
	p.DurationVar(&f.certificates.Certificate, "certificate-validity", 30*24*time.Hour, "of the certificates that it signs; they are replaced when two thirds are over")
	p.DurationVar(&f.certificates.Load, "certificate-load-time", 5*time.Minute, "until all processes have loaded a Secret that changed; more than the kubelet's sync period")
	p.StringVar(&f.custom.address, "custom-metrics-bind-address", "0", "host:port of custom.metrics.k8s.io, for the API server of the cluster; 0: not served")
	p.StringVar(&f.custom.service, "custom-metrics-service", "", "in --own-namespace, which the APIService names")
	p.StringVar(&f.custom.secret, "custom-metrics-secret", "", "in --own-namespace, for the authority of its certificates; it must be there, and may be empty")
	p.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn, error")
	for _, name := range []string{"agent-image", "engine-image", "vllm-image", "gateway-image", "operator-image"} {
		if err := root.MarkFlagRequired(name); err != nil {
			panic(err) // a name that is not a flag: a bug of this file
		}
	}
	root.AddCommand(sizeCommand())
	if err := root.ExecuteContext(ctrl.SetupSignalHandler()); err != nil {
		fmt.Fprintln(os.Stderr, "tangram-operator:", err)
		return 1
	}
	return 0
}

func newLog(level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("--log-level: %w", err)
	}
	return slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: l})), nil
}

func serve(ctx context.Context, f flags, log *slog.Logger) error {
	if at := f.nodeFolder; at != "" && (!path.IsAbs(at) || path.Clean(at) != at || at == "/") {
		return fmt.Errorf("--node-folder: %q is not what is wanted: an absolute path of a folder below /, without '..' and without '/' at its end", at)
	}
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("no cluster to talk to: %w", err)
	}
	options, err := controller.ManagerOptions(f.namespaces...)
	if err != nil {
		return err
	}
	// Names of worlds and what they do are not for everybody: the API server says who asks and whether they may.
	options.Metrics = server.Options{BindAddress: f.metrics, SecureServing: true, FilterProvider: filters.WithAuthenticationAndAuthorization}
	options.HealthProbeBindAddress = f.health
	options.LeaderElection, options.LeaderElectionID, options.LeaderElectionNamespace = f.elect, "tangram-operator", f.ownNamespace
	options.LeaderElectionReleaseOnCancel = true
	mgr, err := ctrl.NewManager(config, options)
	if err != nil {
		return err
	}
	worlds := &world.Worlds{Log: log}
	r := &controller.Reconciler{Log: log, Images: f.images, Worlds: worlds, OwnNamespace: f.ownNamespace, NodeFolder: f.nodeFolder, Certificates: f.certificates}
	if err := r.SetUp(mgr, ownMetrics()); err != nil {
		return err
	}
	if err := errors.Join(mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddReadyzCheck("ping", healthz.Ping)); err != nil {
		return err
	}
	if f.custom.address != "0" {
		served, err := serveCustomMetrics(config, f, r, log)
		if err != nil {
			return err
		}
		if err := mgr.Add(served); err != nil {
			return err
		}
	}
	// Runs while this process leads; ended before the lease is given up.
	if err := mgr.Add(leading{worlds}); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

// leading ends running transitions when this process stops to lead.
type leading struct{ worlds *world.Worlds }

func (l leading) Start(ctx context.Context) error {
	<-ctx.Done()
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWithin)
	defer cancel()
	l.worlds.CloseAll(ending)
	return nil
}

func serveCustomMetrics(config *rest.Config, f flags, worlds custommetrics.Worlds, log *slog.Logger) (*custommetrics.Server, error) {
	for name, value := range map[string]string{"custom-metrics-service": f.custom.service, "custom-metrics-secret": f.custom.secret, "own-namespace": f.ownNamespace} {
		if value == "" {
			return nil, fmt.Errorf("--%s is missing, and --custom-metrics-bind-address needs it", name)
		}
	}
	live, err := client.New(config, client.Options{})
	if err != nil {
		return nil, err
	}
	return &custommetrics.Server{Address: f.custom.address, Config: config, Kubeconfig: os.Getenv(clientcmd.RecommendedConfigPathEnvVar), Worlds: worlds, Log: log,
		Trust: &custommetrics.Trust{Client: live, Namespace: f.ownNamespace, Secret: f.custom.secret, Host: f.custom.service + "." + f.ownNamespace + ".svc",
			Validity: f.certificates.Validity, Load: f.certificates.Load}}, nil
}
