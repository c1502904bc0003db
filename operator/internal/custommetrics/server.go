package custommetrics

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"

	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kube-openapi/pkg/common"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/apiserver"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/cmd/options"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/generated/openapi/core"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/generated/openapi/custommetrics"
)

// Server serves custom.metrics.k8s.io behind the cluster's API server, which authenticates and authorizes the clients.
type Server struct {
	Address    string // host:port
	Config     *rest.Config
	Kubeconfig string // of the same cluster; empty: in-cluster configuration
	Worlds     Worlds
	Trust      *Trust
	Log        *slog.Logger
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: the Service selects any operator, so all of them serve.
func (s *Server) NeedLeaderElection() bool { return false }

// Start serves until the context ends.
func (s *Server) Start(ctx context.Context) error {
	// Without a certificate no client can trust the server.
	if err := s.Trust.await(ctx, s.Log); err != nil {
		return err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.Address)
	if err != nil {
		return fmt.Errorf("custom metrics: %w", err)
	}
	server, err := s.server(l)
	if err != nil {
		_ = l.Close()
		return fmt.Errorf("custom metrics: %w", err)
	}
	go s.Trust.keep(ctx, s.Log)
	s.Log.Info("serving custom metrics", "address", l.Addr().String())
	return server.GenericAPIServer.PrepareRun().RunWithContext(ctx)
}

func (s *Server) server(l net.Listener) (*apiserver.CustomMetricsAdapterServer, error) {
	clients, err := kubernetes.NewForConfig(s.Config)
	if err != nil {
		return nil, err
	}
	o := options.NewCustomMetricsAdapterServerOptions()
	o.SecureServing.Listener, o.SecureServing.MinTLSVersion = l, "VersionTLS13"
	o.Authentication.RemoteKubeConfigFile, o.Authorization.RemoteKubeConfigFile = s.Kubeconfig, s.Kubeconfig
	o.Features.EnableProfiling, o.EnableMetrics = false, false
	o.SecureServing.ServerCert.CertDirectory = "" // write no files: the certificate comes from Trust
	definitions := func(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
		all := core.GetOpenAPIDefinitions(ref)
		maps.Copy(all, custommetrics.GetOpenAPIDefinitions(ref))
		return all
	}
	namer := openapinamer.NewDefinitionNamer(apiserver.Scheme)
	o.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(definitions, namer)
	o.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(definitions, namer)
	o.OpenAPIConfig.Info.Title, o.OpenAPIV3Config.Info.Title = "tangram", "tangram"
	c := genericapiserver.NewRecommendedConfig(apiserver.Codecs)
	c.ClientConfig = s.Config
	c.SharedInformerFactory = informers.NewSharedInformerFactory(clients, 0)
	if err := o.ApplyTo(c); err != nil {
		return nil, err
	}
	c.SecureServing.Cert = s.Trust
	config := &apiserver.Config{GenericConfig: &c.Config}
	return config.Complete(c.SharedInformerFactory).New("tangram-custom-metrics", &Provider{s.Worlds}, nil)
}
