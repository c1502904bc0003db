// Package v1alpha2 holds the Kubernetes API of Tangram: MoEDeployment, one world of ranks
// that serves one model, and LayoutTransition, one change of its layout.
//
// +kubebuilder:object:generate=true
// +groupName=serving.tangram.dev
package v1alpha2

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion of every kind in this package.
var GroupVersion = schema.GroupVersion{Group: "serving.tangram.dev", Version: "v1alpha2"}

// AddToScheme registers the kinds of this package.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &MoEDeployment{}, &MoEDeploymentList{}, &LayoutTransition{}, &LayoutTransitionList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
