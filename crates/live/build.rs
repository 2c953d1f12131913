fn main() {
    tprimat_code::announce();
}
