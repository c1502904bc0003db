package controller

import (
	"fmt"

	api "tangram.dev/api/v1alpha2"
)

// Names of a MoEDeployment's objects (docs/architecture.md, section 9).
func worldName(d *api.MoEDeployment) string      { return d.Namespace + "." + d.Name }
func podName(d *api.MoEDeployment, o int) string { return fmt.Sprintf("%s-%d", d.Name, o) }
func podTLSName(pod string) string               { return pod + "-tls" }
func authorityName(d *api.MoEDeployment) string  { return d.Name + "-ca" }
func gpuClaimName(d *api.MoEDeployment) string   { return d.Name + "-gpu" }
func recordsName(d *api.MoEDeployment) string    { return d.Name + "-world" }
func enginesName(d *api.MoEDeployment) string    { return d.Name + "-engines" }
func gatewayName(d *api.MoEDeployment) string    { return d.Name + "-gateway" }
func gatewayTLSName(d *api.MoEDeployment) string {
	return d.Name + "-gateway-tls"
}

// Ports in a pod of ranks; those of mesh and serve are for device 0.
const (
	portAgent   = 7100
	portData    = 7101
	portMetrics = 7102
	portMesh    = 7200
	portServe   = 7300
	portGateway = 8080

	portGatewayMetrics = 8081

	portGatewayTelemetry = 8082
)

// Paths in a pod.
const (
	dirRun    = "/run/tangram"
	dirAgent  = "/run/tangram-agent" // only in the agent's container
	dirTLS    = "/etc/tangram/tls"
	dirConfig = "/etc/tangram/config"
	dirModels = "/models"
	dirNode   = "/run/tangram-node" // only in the agent's container: memory shared by the world's pods of one node
	hookFile  = dirRun + "/bin/tangram-hook"
	inWorld   = dirRun + "/in-world"
	userID    = 65532 // any user except root: only the init container node-memory needs root
)

func labels(d *api.MoEDeployment, component string) map[string]string {
	return map[string]string{
		"app.kubernetes.io/name": "tangram", "app.kubernetes.io/instance": d.Name, "app.kubernetes.io/managed-by": "tangram-operator",
		"app.kubernetes.io/component": component, api.WorldLabel: d.Name, api.ComponentLabel: component,
	}
}

// selector of pods of one component.
func selector(d *api.MoEDeployment, component string) map[string]string {
	return map[string]string{api.WorldLabel: d.Name, api.ComponentLabel: component}
}
