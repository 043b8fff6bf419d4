from exahpc.cli import main

main(prog_name="exahpc")
