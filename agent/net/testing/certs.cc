#include "agent/net/testing/certs.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace tangram::net::testing {
namespace {

using KeyPtr = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using CertPtr = std::unique_ptr<X509, decltype(&X509_free)>;

KeyPtr NewKey() { return {EVP_EC_gen("P-256"), EVP_PKEY_free}; }

void Extend(X509* cert, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, cert, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
  if (extension == nullptr || X509_add_ext(cert, extension, -1) != 1) std::abort();
  X509_EXTENSION_free(extension);
}

CertPtr NewCert(EVP_PKEY* key, const std::string& name) {
  static std::atomic<long> serial{1};  // several threads create certificates
  CertPtr cert(X509_new(), X509_free);
  X509_set_version(cert.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(cert.get()), serial++);
  X509_gmtime_adj(X509_getm_notBefore(cert.get()), -3600);
  X509_gmtime_adj(X509_getm_notAfter(cert.get()), 3600);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(cert.get()), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509_set_pubkey(cert.get(), key);
  return cert;
}

template <typename Write>
std::string Pem(Write write) {
  BIO* bio = BIO_new(BIO_s_mem());
  write(bio);
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  std::string out(data, static_cast<size_t>(size));
  BIO_free(bio);
  return out;
}

}  // namespace

struct TestCa::Keys {
  KeyPtr key{nullptr, EVP_PKEY_free};
  CertPtr cert{nullptr, X509_free};
};

TestCa::TestCa() : keys_(std::make_unique<Keys>()) {
  keys_->key = NewKey();
  keys_->cert = NewCert(keys_->key.get(), "test ca");
  X509* cert = keys_->cert.get();
  X509_set_issuer_name(cert, X509_get_subject_name(cert));
  Extend(cert, cert, NID_basic_constraints, "critical,CA:TRUE");
  X509_sign(cert, keys_->key.get(), EVP_sha256());
}

TestCa::~TestCa() = default;

TlsTexts TestCa::Issue(const std::string& uri) const {
  const KeyPtr key = NewKey();
  const CertPtr cert = NewCert(key.get(), "leaf");
  X509_set_issuer_name(cert.get(), X509_get_subject_name(keys_->cert.get()));
  // spiffe://tangram/<world>/<kind>[/<pod>]: the name is that of the kind, without an address.
  std::string names = "URI:" + uri;
  constexpr size_t kPrefix = sizeof("spiffe://tangram/") - 1;
  if (const size_t slash = uri.find('/', kPrefix); uri.size() > kPrefix && slash != uri.npos) {
    const std::string role = uri.substr(slash + 1);
    names += ",DNS:" + role.substr(0, role.find('/')) + "." + uri.substr(kPrefix, slash - kPrefix);
  }
  Extend(cert.get(), keys_->cert.get(), NID_subject_alt_name, names);
  X509_sign(cert.get(), keys_->key.get(), EVP_sha256());
  TlsTexts out;
  out.ca = Pem([&](BIO* bio) { PEM_write_bio_X509(bio, keys_->cert.get()); });
  out.cert = Pem([&](BIO* bio) { PEM_write_bio_X509(bio, cert.get()); });
  out.key = Pem([&](BIO* bio) {
    PEM_write_bio_PrivateKey(bio, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  });
  return out;
}

TlsFiles TestCa::Write(const std::string& uri, const std::string& dir,
                       const std::string& name) const {
  const TlsTexts texts = Issue(uri);
  const TlsFiles files{dir + "/" + name + ".ca", dir + "/" + name + ".crt",
                       dir + "/" + name + ".key"};
  for (const auto& [path, text] :
       {std::pair{&files.ca, &texts.ca}, {&files.cert, &texts.cert}, {&files.key, &texts.key}}) {
    if (!(std::ofstream(*path) << *text).flush()) std::abort();
  }
  return files;
}

std::shared_ptr<Credentials> TestCa::Open(const std::string& world, const std::string& role,
                                          const std::string& pod) const {
  char dir[] = "/tmp/tangram-certs-XXXXXX";
  if (mkdtemp(dir) == nullptr) std::abort();
  auto out = Credentials::Open(
      Write("spiffe://tangram/" + world + "/" + role + "/" + pod, dir, pod), world, role);
  std::filesystem::remove_all(dir);  // read already
  if (!out.ok()) std::abort();
  return std::move(out).value();
}

}  // namespace tangram::net::testing
