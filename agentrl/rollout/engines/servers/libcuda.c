/* What stands in for NVIDIA's driver library where there is none; see driver.py.
 *
 * SGLang's kernels link against libcuda.so.1 even when it serves on a CPU, and look for this one function when
 * they are imported. It answers CUDA_ERROR_NO_DEVICE, as a driver without a device would.
 */
int cuPointerGetAttribute(void *data, int attribute, unsigned long long pointer) {
    (void)data;
    (void)attribute;
    (void)pointer;
    return 100;
}
