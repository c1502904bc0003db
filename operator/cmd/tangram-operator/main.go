// tangram-operator reconciles MoEDeployments: see internal/controller.
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

// customMetrics are the flags of the custom metrics server.
type customMetrics struct{ address, service, secret string }

// closeWithin limits how long running flips may take when the process ends.
const closeWithin = 20 * time.Second

// ownMetrics registers the operator's metrics in controller-runtime's registry, once per process.
var ownMetrics = sync.OnceValue(func() *controller.Metrics { return controller.NewMetrics(metrics.Registry) })

func main() { os.Exit(run()) }

// run returns the exit code.
func run() int {
	var f flags
	root := &cobra.Command{Use: "tangram-operator", Short: "Reconcile MoEDeployments", Args: cobra.NoArgs, SilenceErrors: true, SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := newLog(f.logLevel)
			if err != nil {
				return err
			}
			ctrl.SetLogger(logr.FromSlogHandler(log.Handler()))
			klog.SetSlogLogger(log) // leader election logs with klog
			return serve(cmd.Context(), f, log)
		}}
	p := root.Flags()
	p.StringVar(&f.images.Agent, "agent-image", "", "image of agents")
	p.StringVar(&f.images.AgentGPU, "agent-gpu-image", "", "image of agents on GPUs, which includes NCCL; empty: --agent-image")
	p.StringVar(&f.images.Engine, "engine-image", "", "image of engine reference")
	p.StringVar(&f.images.VLLM, "vllm-image", "", "image of engine vllm and of text servers")
	p.StringVar(&f.images.Gateway, "gateway-image", "", "image of gateways")
	p.StringVar(&f.images.Operator, "operator-image", "", "image of this operator, used for pods that read checkpoints")
	p.StringSliceVar(&f.namespaces, "namespaces", nil, "namespaces to watch; empty: all")
	p.StringVar(&f.metrics, "metrics-bind-address", ":8080", "host:port of /metrics over HTTPS, for accounts that may get /metrics; 0: not served")
	p.StringVar(&f.health, "health-probe-bind-address", ":8081", "host:port of /healthz and /readyz")
	p.BoolVar(&f.elect, "leader-elect", false, "reconcile only while this process holds the leader lease")
	p.StringVar(&f.ownNamespace, "own-namespace", "", "namespace of the operator and its lease; only this namespace may connect to agents; empty: any namespace")
	p.StringVar(&f.nodeFolder, "node-folder", controller.DefaultNodeFolder, "absolute path on nodes for one folder per world with spec.network.nodeMemorySharing; must be writable only by root")
	p.DurationVar(&f.certificates.Authority, "authority-validity", 365*24*time.Hour, "validity of the certificate authority of a world, which is replaced after two thirds of this time")
	p.DurationVar(&f.certificates.Certificate, "certificate-validity", 30*24*time.Hour, "validity of the certificates of a world, which are replaced after two thirds of this time")
	p.DurationVar(&f.certificates.Load, "certificate-load-time", 5*time.Minute, "time until all processes have loaded a changed Secret; must be longer than the sync period of the kubelets")
	p.StringVar(&f.custom.address, "custom-metrics-bind-address", "0", "host:port of custom.metrics.k8s.io for the API server; 0: not served")
	p.StringVar(&f.custom.service, "custom-metrics-service", "", "name of the Service in --own-namespace to which the APIService refers")
	p.StringVar(&f.custom.secret, "custom-metrics-secret", "", "name of the Secret in --own-namespace for the certificate authority of custom metrics; must exist, can be empty")
	p.StringVar(&f.logLevel, "log-level", "info", "log level: debug, info, warn or error")
	for _, name := range []string{"agent-image", "engine-image", "vllm-image", "gateway-image", "operator-image"} {
		if err := root.MarkFlagRequired(name); err != nil {
			panic(err) // not the name of a flag: a bug in this file
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
		return fmt.Errorf("--node-folder is %q; want an absolute path other than /, without '..' and without a trailing '/'", at)
	}
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("no cluster configuration found: %w; run in a pod or set KUBECONFIG", err)
	}
	options, err := controller.ManagerOptions(f.namespaces...)
	if err != nil {
		return err
	}
	// Metrics contain the names and activity of worlds, so the API server authenticates and authorizes each request.
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
	// The manager runs this while the process leads, and ends it before it releases the lease.
	if err := mgr.Add(leading{worlds}); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

// leading ends running transitions when this process stops leading.
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
			return nil, fmt.Errorf("--%s is missing; --custom-metrics-bind-address needs it", name)
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
