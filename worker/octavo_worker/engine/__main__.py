from octavo_worker.engine.process import main

main()
