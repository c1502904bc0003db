/* client.h is C: it compiles as such, and the shared library resolves what it declares. */
#include <stdio.h>
#include <string.h>

#include "tangram/client.h"

int main(void) {
  tg_error error;
  tg_client* client = NULL;
  tg_options options;
  memset(&options, 0, sizeof options);
  options.socket_path = "/nowhere/agent.sock";
  options.token = "t";
  if (strlen(tg_version()) == 0) return 1;
  if (tg_attach(&options, &client, &error) != TG_DISCONNECTED || client != NULL) {
    fprintf(stderr, "attach: %s\n", error.message);
    return 2;
  }
  if (strstr(error.message, "/nowhere/agent.sock") == NULL) return 3;
  if (tg_attach(NULL, &client, &error) != TG_INVALID) return 4;
  return 0;
}
