from octavo_worker.assembly.cli import main

main()
