// NVIDIA/cuopt #1756: each turn of a loop uploads a view that lives on the stack, in stream order. The next turn writes
// another view into its place.
// expect: error HOST_WAR|UAF

#include "program.cuh"
#include <vector>

constexpr int ROUTES = 64;

struct View {
    float values[16];
};

static void set_element(float *views, int route, const View &view, cudaStream_t stream) {
    void *to = views + 16 * route;
    const void *from = &view;
    size_t bytes = sizeof view, first_of = 0;
    cudaMemcpyAttributes attributes = {cudaMemcpySrcAccessOrderStream};
    must(cudaMemcpyBatchAsync(&to, &from, &bytes, 1, &attributes, &first_of, 1, stream)); // first second
}

int main(int count, char **) {
    const bool repaired = count > 1;
    float *views = device_memory(ROUTES * sizeof(View));
    std::vector<View> kept(ROUTES);
    cudaStream_t stream = new_stream();

    occupy(stream);
    for (int route = 0; route < ROUTES; route++) {
        View view;
        for (float &value : view.values) value = route; // second
        kept[route] = view;
        set_element(views, route, repaired ? kept[route] : view, stream);
    }
    must(cudaStreamSynchronize(stream)); // second
    return finish(views, 16 * ROUTES);
}
